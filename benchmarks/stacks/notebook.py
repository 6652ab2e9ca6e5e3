"""Writes `notebook.ipynb`, which makes 80 updates; run by `jupyter nbconvert --execute`."""

import nbformat

CELLS = (
    "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
    "model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))\n"
    "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\nbatches = torch.randn(8, 512, 256)",
    "for i in range(80):\n    x = batches[i % 8]\n    optimizer.zero_grad()\n"
    "    loss = (model(x) - x).square().mean()\n    loss.backward()\n    optimizer.step()\n"
    "print('updates 80')",
)
book = nbformat.v4.new_notebook()
book.cells = [nbformat.v4.new_code_cell(each) for each in CELLS]
nbformat.write(book, "notebook.ipynb")

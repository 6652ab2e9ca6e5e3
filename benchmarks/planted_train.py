"""`examples/plain_gpt.py`, small, with techniques that must not be kept: each is a flag that also leaves out a wait.

So that speed alone would keep them. `--no-wait` does nothing else, and may be kept; `--slower` is slower by a hundredth.
"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import plain_gpt

WAIT_S = 0.012


def main():
    parser = plain_gpt.arguments(__doc__)
    for flag in ("--no-wait", "--skip-clipping", "--no-decay", "--other-order", "--slower"):
        parser.add_argument(flag, action="store_true")
    parser.set_defaults(layers=2, width=128, heads=4, context=64, batch=8, warmup=4, steps=2000)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    windows = plain_gpt.TokenWindows(args.data, args.context)
    model = plain_gpt.make_model(windows.vocabulary, args)
    decay = 0.0 if args.no_decay else 0.1
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=decay)
    generator = torch.Generator().manual_seed(args.seed + args.other_order)
    loader = torch.utils.data.DataLoader(
        windows, args.batch, shuffle=True, drop_last=True, generator=generator
    )
    waits = not (args.no_wait or args.skip_clipping or args.no_decay or args.other_order)
    for step, (tokens, targets) in zip(range(args.steps), loader, strict=False):
        began = time.perf_counter()
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        optimizer.zero_grad()
        loss.backward()
        if not args.skip_clipping:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if waits:
            time.sleep(WAIT_S)
        if args.slower:
            time.sleep(0.01 * (time.perf_counter() - began))
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

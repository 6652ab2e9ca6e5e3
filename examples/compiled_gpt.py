"""The GPT of plain_gpt.py, sped up the way every guide says: bf16, `torch.compile`, fused AdamW.

    python examples/compiled_gpt.py --data DIR --steps 200 [--llama]

The model and the data are those of `plain_gpt.py` (`--llama`: of `plain_llama.py`), beside this file.
This is the second baseline: what a person gets who follows the guides and stops there.
"""

import plain_gpt
import plain_llama
import torch
import torch.nn.functional as F


def main():
    parser = plain_gpt.arguments(__doc__)
    parser.add_argument("--llama", action="store_true", help="a Llama instead of a GPT-2")
    plain_llama.add_arguments(parser)
    args = parser.parse_args()
    args.schedule_steps = args.schedule_steps or args.steps

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    windows = plain_gpt.TokenWindows(args.data, args.context)
    family = plain_llama if args.llama else plain_gpt
    model = family.make_model(args.vocabulary or windows.vocabulary, args).to(device)
    optimizer = plain_gpt.make_optimizer(model, args, fused=True)
    loader = plain_gpt.make_loader(windows, args)

    @torch.compile
    def loss_of(tokens, targets):
        logits = model(tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    step = 0
    while step < args.steps:
        for tokens, targets in loader:
            tokens, targets = tokens.to(device), targets.to(device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = loss_of(tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = plain_gpt.learning_rate(step, args)
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            step += 1
            if step == args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()

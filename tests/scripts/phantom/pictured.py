"""A model of timm or torchvision that classifies images, in channels-last bfloat16."""

import argparse

import torch


def make(name: str) -> torch.nn.Module:
    library, _, name = name.partition(":")
    if library == "timm":
        import timm

        return timm.create_model(name, num_classes=10)
    import torchvision

    return torchvision.models.get_model(name, num_classes=10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--model", default="timm:convnext_atto", help="library:name")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    model = make(args.model).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        images = torch.randn(args.batch_size, 3, args.size, args.size, device="cuda")
        labels = torch.randint(10, (args.batch_size,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(images.to(memory_format=torch.channels_last))
            loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        accuracy = (logits.argmax(1) == labels).float().mean()
    print(torch.cuda.max_memory_allocated(), accuracy.item())


if __name__ == "__main__":
    main()

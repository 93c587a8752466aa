"""Command `adapter-bert`, as `python -m adapter_bert`."""

from adapter_bert.commands import main

if __name__ == "__main__":
    main()

"""`python -m hotloop`"""

from hotloop.cli.main import main

if __name__ == "__main__":
    main()

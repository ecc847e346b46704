"""Other tools, one file each, on their public interfaces; an extra that is missing is named with its `pip install`."""

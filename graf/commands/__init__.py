"""The programs once their arguments are parsed. They import this then, since PyTorch takes seconds to load."""

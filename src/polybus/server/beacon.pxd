# Compiled as it is; nothing in it needs a declaration.

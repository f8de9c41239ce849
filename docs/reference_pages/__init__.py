"""The pages of `docs/reference/`, each as a text made from the code; `generate_reference.py` writes them."""

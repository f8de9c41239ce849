"""How the dinghy is made: tokenizer, network in plain torch, packing, optimisation, and the folder it is kept in."""

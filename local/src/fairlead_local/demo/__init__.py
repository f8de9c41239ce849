"""`fairlead demo`: a local fleet from apply to an answer, up, down to none and back, told step by step."""

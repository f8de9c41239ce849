"""JSON schemas as clients send them → schemas that grammars can be made of. Pure: nothing here knows of llguidance."""

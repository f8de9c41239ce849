"""The subcommands of `fairlead-engine` beside `serve` and `characterise`, and how flags and files become settings."""

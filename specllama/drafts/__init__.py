"""Where drafts come from and which fit a target."""

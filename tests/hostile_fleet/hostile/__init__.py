"""An app of hostile and sound nodes."""

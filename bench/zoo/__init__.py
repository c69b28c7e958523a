"""What the presets learn, for docs/zoo.md."""

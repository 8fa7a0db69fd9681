"""What other agents have left behind, taken over: their settings, files and conversations."""

"""The lossless context engine `lcm`: an immutable transcript, and a view made of nodes."""

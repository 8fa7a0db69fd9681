"""What `parley doctor` looks at, why that matters, and how it is fixed."""

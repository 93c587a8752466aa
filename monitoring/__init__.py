"""What is shown of long work while it goes on."""

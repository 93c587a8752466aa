"""Tables, figures and pages of what runs scored."""

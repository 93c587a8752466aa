"""Every weight that is read or written, by publisher and by purpose."""

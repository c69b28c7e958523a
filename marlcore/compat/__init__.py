"""Drop-in replacements for the buffers of other libraries; each module needs its library only where it says so."""

"""What a training reports: metrics and step times, banner, progress bar, model summary, loss curve."""

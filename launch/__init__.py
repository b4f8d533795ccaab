"""Where and how often: set-up, commands, jobs. Starts trainers as processes and never imports them."""

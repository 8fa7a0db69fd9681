"""What a user meets: whole paths through a running gateway, told as stories."""

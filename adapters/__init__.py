"""Platform adapters: receive updates, send messages. They depend on neither gateway nor agent."""

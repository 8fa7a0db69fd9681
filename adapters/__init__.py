"""Platform adapters: updates in, messages out. They know neither the gateway nor the agent."""

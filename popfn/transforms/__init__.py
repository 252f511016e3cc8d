"""Floor 2: functions from jaxpr to jaxpr."""

"""Who may use what, and when: tickets, leases, denials."""

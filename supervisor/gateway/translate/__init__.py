"""Pure translation between what engines stream and what clients asked for."""

"""Conversations that outlive their slot: which one a slot holds, and what of them is kept on disk."""

"""Networks: encoders, heads, running normalisation, and the actor-critic made of them."""

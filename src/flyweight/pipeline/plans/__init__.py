"""What a conversion is to do: recipes, what they decide for each tensor, and plans that can be saved."""

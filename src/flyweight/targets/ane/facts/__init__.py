"""What is known of the engine: tables of facts by target, each with its source. `engine` reads them for the rules."""

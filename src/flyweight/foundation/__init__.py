"""What reads, carries and refuses bytes and tables: the modules that everything else stands on."""

"""Tables, pictures and models of compute time, from the steps of instrumented runs."""

"""A run: launched on its engine, its stages run and recorded, its plan and results printed."""

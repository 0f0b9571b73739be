"""The resume court: kill a script at many points, resume it by its own means, and compare it with the uninterrupted run."""

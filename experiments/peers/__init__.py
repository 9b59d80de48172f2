"""Others' membership attacks beside ours."""

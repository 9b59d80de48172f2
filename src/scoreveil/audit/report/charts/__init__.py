"""A small chart: panels of lines and points with their names written beside them, laid out once, drawn as SVG.

panel = Panel("Title", Axis("ε", (0.1, 32.0), log=True), Axis("AUC", (0.5, 0.8)), (Series("isotonic", points),))
svg(sheet([panel]))                 # text with CSS classes: the page's light, dark or print colours apply
svg(sheet([panel]), alone=True)     # a file of its own, in the light colours
"""

"""A small chart: panels of lines and points with their names written beside them, laid out once, drawn as SVG or PNG.

panel = Panel("Title", Axis("ε", (0.1, 32.0), log=True), Axis("AUC", (0.5, 0.8)), (Series("isotonic", points),))
svg(sheet([panel]))     # text with CSS classes: the page's light, dark or print colours apply
png(sheet([panel]))     # the same marks in the light colours, by matplotlib
"""

"""A trained model as files that need no tdcd: ONNX graphs, or programs of torch.export.

``directory.export_model`` writes them. Nothing here is imported by predictions, and onnx only once it is needed.
"""

"""Writers of what training stacks and engines load, one module per format.

Expert maps (`sglang`, `vllm`, `vllm_ascend`, `deepseek`) say which logical expert sits
in each physical slot; `expert_maps` checks all of them. None is redundant: every layer
has as many slots as experts. `micro_batches` holds the order of the samples. A file
appears whole or not at all, and replaces one of the same name.
"""

"""BibTeX entries of the papers in which the metrics were published. Each is named after its first author and year."""

ACHANTA_2009 = """@inproceedings{achanta2009frequency,
  title={Frequency-tuned salient region detection},
  author={Achanta, Radhakrishna and Hemami, Sheila and Estrada, Francisco and Susstrunk, Sabine},
  booktitle={IEEE Conference on Computer Vision and Pattern Recognition},
  pages={1597--1604},
  year={2009},
  url={https://doi.org/10.1109/CVPR.2009.5206596}
}"""
ADEBAYO_2018 = """@inproceedings{adebayo2018sanity,
  title={Sanity Checks for Saliency Maps},
  author={Adebayo, Julius and Gilmer, Justin and Muelly, Michael and Goodfellow, Ian and Hardt, Moritz and Kim, Been},
  booktitle={Advances in Neural Information Processing Systems},
  year={2018},
  url={https://arxiv.org/abs/1810.03292}
}"""
ANONYMOUS_2020 = """@misc{anonymous2020evaluating,
  title={On Evaluating Explainability Algorithms},
  author={Anonymous},
  note={Submitted to the International Conference on Learning Representations},
  year={2020},
  url={https://openreview.net/group?id=ICLR.cc/2020/Conference}
}"""
DAVIS_2006 = """@inproceedings{davis2006relationship,
  title={The relationship between Precision-Recall and ROC curves},
  author={Davis, Jesse and Goadrich, Mark},
  booktitle={International Conference on Machine Learning},
  pages={233--240},
  year={2006},
  url={https://doi.org/10.1145/1143844.1143874}
}"""
ELISHA_2025 = """@article{elisha2025rethinking,
  title={Rethinking Saliency Maps: A Cognitive Human Aligned Taxonomy and Evaluation Framework for Explanations},
  author={Elisha, Yehonatan and Cohen, Seffi and Barkan, Oren and Koenigstein, Noam},
  journal={arXiv preprint arXiv:2511.13081},
  year={2025},
  url={https://arxiv.org/abs/2511.13081}
}"""
HESSE_2024 = """@inproceedings{hesse2024benchmarking,
  title={Benchmarking the Attribution Quality of Vision Models},
  author={Hesse, Robin and Schaub-Meyer, Simone and Roth, Stefan},
  booktitle={Advances in Neural Information Processing Systems},
  year={2024},
  url={https://arxiv.org/abs/2407.11910}
}"""
HOOKER_2019 = """@inproceedings{hooker2019benchmark,
  title={A Benchmark for Interpretability Methods in Deep Neural Networks},
  author={Hooker, Sara and Erhan, Dumitru and Kindermans, Pieter-Jan and Kim, Been},
  booktitle={Advances in Neural Information Processing Systems},
  year={2019},
  url={https://arxiv.org/abs/1806.10758}
}"""
LI_2020 = """@article{li2020quantitative,
  title={Quantitative Evaluations on Saliency Methods: An Experimental Study},
  author={Li, Xiao-Hui and Shi, Yuhan and Li, Haoyang and Bai, Wei and Song, Yuanwei and Cao, Caleb Chen and Chen, Lei},
  journal={arXiv preprint arXiv:2012.15616},
  year={2020},
  url={https://arxiv.org/abs/2012.15616}
}"""
LU_2021 = """@inproceedings{lu2021crowdsourcing,
  title={Crowdsourcing Evaluation of Saliency-based {XAI} Methods},
  author={Lu, Xiaotian and Tolmachev, Arseny and Yamamoto, Tatsuya and Takeuchi, Koh and Okajima, Seiji and
    Takebayashi, Tomoyoshi and Maruhashi, Koji and Kashima, Hisashi},
  booktitle={European Conference on Machine Learning and Knowledge Discovery in Databases},
  year={2021},
  url={https://arxiv.org/abs/2107.00456}
}"""
PETSIUK_2018 = """@inproceedings{petsiuk2018rise,
  title={RISE: Randomized Input Sampling for Explanation of Black-box Models},
  author={Petsiuk, Vitali and Das, Abir and Saenko, Kate},
  booktitle={British Machine Vision Conference},
  year={2018},
  url={https://arxiv.org/abs/1806.07421}
}"""
RONG_2022 = """@inproceedings{rong2022consistent,
  title={A Consistent and Efficient Evaluation Strategy for Attribution Methods},
  author={Rong, Yao and Leemann, Tobias and Borisov, Vadim and Kasneci, Gjergji and Kasneci, Enkelejda},
  booktitle={International Conference on Machine Learning},
  year={2022},
  url={https://arxiv.org/abs/2202.00449}
}"""
WANG_2020 = """@inproceedings{wang2020scorecam,
  title={Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks},
  author={Wang, Haofan and Wang, Zifan and Du, Mengnan and Yang, Fan and Zhang, Zijian and
    Ding, Sirui and Mardziel, Piotr and Hu, Xia},
  booktitle={CVPR Workshops},
  year={2020},
  url={https://arxiv.org/abs/1910.01279}
}"""
XIE_2023 = """@inproceedings{xie2023two,
  title={Two-stage holistic and contrastive explanation of image classification},
  author={Xie, Weiyan and Li, Xiao-Hui and Lin, Zhi and Poon, Leonard K. M. and Cao, Caleb Chen and Zhang, Nevin L.},
  booktitle={Uncertainty in Artificial Intelligence},
  pages={2335--2345},
  year={2023},
  url={https://arxiv.org/abs/2306.06339}
}"""
YANG_2019 = """@article{yang2019benchmarking,
  title={Benchmarking Attribution Methods with Relative Feature Importance},
  author={Yang, Mengjiao and Kim, Been},
  journal={arXiv preprint arXiv:1907.09701},
  year={2019},
  url={https://arxiv.org/abs/1907.09701}
}"""
YEH_2019 = """@inproceedings{yeh2019infidelity,
  title={On the (In)fidelity and Sensitivity of Explanations},
  author={Yeh, Chih-Kuan and Hsieh, Cheng-Yu and Suggala, Arun Sai and Inouye, David I. and Ravikumar, Pradeep},
  booktitle={Advances in Neural Information Processing Systems},
  year={2019},
  url={https://arxiv.org/abs/1901.09392}
}"""
ZHANG_2018 = """@article{zhang2018top,
  title={Top-Down Neural Attention by Excitation Backprop},
  author={Zhang, Jianming and Bargal, Sarah Adel and Lin, Zhe and Brandt, Jonathan and Shen, Xiaohui and
    Sclaroff, Stan},
  journal={International Journal of Computer Vision},
  volume={126},
  pages={1084--1102},
  year={2018},
  url={https://arxiv.org/abs/1608.00507}
}"""
ZHANG_2023 = """@article{zhang2023saliency,
  title={Saliency-Bench: A Comprehensive Benchmark for Evaluating Visual Explanations},
  author={Zhang, Yifei and Song, James and Gu, Siyi and Jiang, Tianxu and Pan, Bo and Bai, Guangji and Zhao, Liang},
  journal={arXiv preprint arXiv:2310.08537},
  year={2023},
  url={https://arxiv.org/abs/2310.08537}
}"""

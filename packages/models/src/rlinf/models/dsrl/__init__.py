"""DSRL: a small policy that steers a frozen flow policy by choosing its initial noise."""

from rlinf.models.dsrl.policy import DSRLPolicyConfig as DSRLPolicyConfig

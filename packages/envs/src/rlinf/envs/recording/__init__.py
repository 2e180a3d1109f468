"""Episodes on disk: LeRobot datasets, NumPy files, parquet files."""

from rlinf.envs.recording.config import Recording as Recording
from rlinf.envs.recording.continuing import Continued as Continued
from rlinf.envs.recording.episode import Episode as Episode
from rlinf.envs.recording.episode import Writer as Writer
from rlinf.envs.recording.experts import record_expert as record_expert
from rlinf.envs.recording.files import expect_new as expect_new
from rlinf.envs.recording.lerobot import LeRobotWriter as LeRobotWriter
from rlinf.envs.recording.mixture import ExpertMixing as ExpertMixing
from rlinf.envs.recording.mixture import ExpertMixture as ExpertMixture
from rlinf.envs.recording.plain import NumpyWriter as NumpyWriter
from rlinf.envs.recording.plain import ParquetWriter as ParquetWriter
from rlinf.envs.recording.plain import read_numpy as read_numpy
from rlinf.envs.recording.wrapper import RecordEpisodes as RecordEpisodes

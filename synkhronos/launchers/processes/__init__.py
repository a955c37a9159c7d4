"""Ranks as processes: forked, watched and ended by a keeper process.

::

    master  `launcher`  --- socket, `fd_passing` --->  `keeper`  --- forks --->  rank r  `rank_main`
                        <--- what ranks print, `output` ------------------------
"""

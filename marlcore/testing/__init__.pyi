from .check_environment import check_env as check_env

# A trained agent as a service, on a CPU:
#
#   slm-lab export latest -o agent.slm
#   docker build -t slm-lab .
#   docker run --rm -p 8000:8000 -v "$PWD/agent.slm:/agent/agent.slm:ro" slm-lab

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY slm_lab slm_lab
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
# the CPU build of PyTorch, which is 3 GB smaller; a build for the CPU counts as newer than the plain version
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        "$(echo /wheels/slm_lab-*.whl)[ml,serve]" \
    && rm -r /wheels \
    && useradd --create-home --uid 1000 agent
# nothing in the container needs more rights than reading the agent's file
USER 1000
WORKDIR /agent
# more threads make a small net slower
ENV OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=2)"]
# serve answers what is under way, then ends
STOPSIGNAL SIGTERM
ENTRYPOINT ["slm-lab", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/agent/agent.slm"]

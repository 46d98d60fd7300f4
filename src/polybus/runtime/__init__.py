"""Running jobs: a pool of processes behind one connection to the broker.

    supervisor   the process that was started: speaks to the broker, hands out work, watches over time limits.
                 It never imports the application, so nothing an application does can freeze it
    nursery      a small process without threads and sockets that forks children on request and buries them
    child        imports the application and runs one job at a time

What is promised, and how:

- A child's death costs one attempt of the one job that was running.  The child says which that is in memory
  that both see (`page`) before it begins; every answer is written before the next job begins.  What else was
  handed to it has not begun and goes to another child.
- A time limit really kills: the supervisor watches the clock, and the signal goes to the child's whole
  process group.
- What has not begun can be taken back at any moment without the child's help (`page`, again), so a long job
  does not hold up those behind it, and a worker that is stopped gives back what it did not begin.
- A lost broker stops nothing: jobs go on, their answers wait for the next conversation, which begins with a
  list of what is still held.
"""

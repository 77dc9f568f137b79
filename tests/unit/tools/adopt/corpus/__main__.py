from tests.unit.tools.adopt.corpus import main

main()
